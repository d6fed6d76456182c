"""Charts as SVG elements. Pure: the web page and the report draw with the same functions."""
