"""Commands that show a screen: in the terminal or in the browser."""
