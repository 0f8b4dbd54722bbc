"""The speed goals of the replay buffer, measured beside other buffers and beside what the machine allows."""
