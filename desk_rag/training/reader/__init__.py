"""The recipe that makes the embedded reader from text: tokenizer, language model, question writer, reading stages."""
