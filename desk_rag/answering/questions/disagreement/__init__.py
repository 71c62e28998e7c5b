"""Documents that answer a question differently: which is the newest, and which corrects another."""
