"""The arguments and options of the commands, as Typer needs them."""
