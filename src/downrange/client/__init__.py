"""What users hold: each class beside its asyncio twin, a method of one to three lines a call."""

import logging

# A library says nothing unless the program wants to hear it.
logging.getLogger("downrange").addHandler(logging.NullHandler())
