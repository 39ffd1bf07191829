"""Models: their shape (`arch`), weights (`loader`), positions (`rope`) and forward pass."""
