"""Commands of the `hgemm` CLI, one module each, loaded only when used."""
