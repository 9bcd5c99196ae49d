"""Who decides the role of a broker, one module for each haMode (`steering`)."""
