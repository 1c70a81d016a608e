"""Strategies for several devices, one file each."""
