"""Faster forms of what torch does, each taken where it was measured to gain."""
