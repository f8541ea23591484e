"""Tests of distributed code, by pytest: `plugin` is what pytest loads.

It is there in every pytest of who has installed simlib, so neither this module nor `plugin` imports
torch: that happens when a test asks for ranks.
"""
