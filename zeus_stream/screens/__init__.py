"""Screens for people, and what other systems read: terminal, pages, reports, metrics. Each draws views."""
