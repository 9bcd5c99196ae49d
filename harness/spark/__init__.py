"""The Spark session that checkers run on."""
