"""Detect launchers and devices, and plan the device of each process."""
