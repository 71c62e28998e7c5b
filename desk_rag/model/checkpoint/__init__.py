"""The files of a model directory, checked before any library acts on them."""
