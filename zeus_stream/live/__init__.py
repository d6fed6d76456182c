"""What is live, for screens: the terminal and the browser."""
