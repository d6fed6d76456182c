"""Figures and sentences for people, made once: screens draw them and compute nothing."""
