"""The search for the best limit: blocks of visits, the curve through them, and what to measure next."""
