<<<<<<< HEAD
"""Commands that show or export what goes on and what was measured."""
=======
"""Commands that show a screen: in the terminal or in the browser."""
>>>>>>> main
