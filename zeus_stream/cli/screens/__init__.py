"""Commands that show or export what goes on and what was measured."""
