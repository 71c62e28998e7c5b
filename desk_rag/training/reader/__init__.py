"""The recipe of the embedded reader: tokenizer, language model, question writer, reading stages."""
