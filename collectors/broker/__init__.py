"""A host at the broker: relay, announcements, requests. Imported only where one is named."""
