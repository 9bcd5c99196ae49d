"""Files of histories as text: pieces of lines, EDN, JSON."""
