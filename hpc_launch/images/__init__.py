"""Container images: wrap commands for a runtime (pure), and build, pull and check images."""
