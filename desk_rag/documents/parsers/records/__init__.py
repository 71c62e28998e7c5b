"""Files of many entries: messages, events, contacts, rows, cells."""
