"""Processes killed, bytes flipped, commands run at once, disks filled and commands misused: ``make torture``."""
