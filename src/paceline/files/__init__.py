"""Files of others: ordinary and bounded (`reading`), of the right shape (`shape`), shown safely (`visible`)."""
