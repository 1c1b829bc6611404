"""What fits on which machine, said by that machine's compiler: `halofeed plan`, and `plan` for a step of one's own."""
