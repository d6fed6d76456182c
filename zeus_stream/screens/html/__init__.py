"""HTML of the web pages and of the report: elements, questions to the archive, and panels drawn of them."""
