"""`coordinator demo`: the product's main job on real input, with a process killed in the middle; see README.md here."""
