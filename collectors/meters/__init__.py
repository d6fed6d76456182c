"""Meters of a whole host or site: Redfish, IPMI, SNMP, Cray, a file, any command."""
