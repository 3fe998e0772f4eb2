"""Text, tables and live displays for the terminal."""
