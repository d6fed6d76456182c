"""The feed of many hosts through a broker, NATS JetStream. Imported only where one is configured."""
