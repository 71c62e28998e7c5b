"""The way of a question through the UI: when it can be asked, what can be done with it, both ways of asking."""
