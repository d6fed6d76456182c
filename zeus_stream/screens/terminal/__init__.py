"""The live screen in a terminal. The only door to Textual."""
