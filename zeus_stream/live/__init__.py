"""The live answer of the services, how a screen asks for it, and an archive file as a source of tables."""
