"""Holds a descriptor from its import on."""

import os

HELD = os.open(os.devnull, os.O_RDWR)
