"""The web page: pages drawn from SQL and from what is live. It asks and decides nothing: GET only."""
