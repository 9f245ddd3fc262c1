"""Keeps the environment as it is imported."""

import os

SEEN = dict(os.environ)
