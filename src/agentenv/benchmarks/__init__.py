"""The measurements behind every speed and memory claim of AgentENV.

Each module measures one thing against a reference in the same run, the two in turn, so that a slow or busy machine slows both.
`agentenv bench NAME` runs one; the rows say what was reached, whatever it is."""
