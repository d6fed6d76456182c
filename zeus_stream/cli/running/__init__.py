"""Parts of `zeus-stream run`: signals, and the end of the command."""
