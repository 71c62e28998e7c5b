"""The computer: is it idle, on battery or hot, and how work in the background stays out of the way."""
