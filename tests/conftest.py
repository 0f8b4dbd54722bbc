"""What all tests share."""

import os

from hypothesis import settings

# A shared machine may stall for longer than any deadline, and nothing here asserts times. CI sees the same examples
# every time, a person new ones.
settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")
