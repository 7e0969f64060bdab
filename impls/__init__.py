"""What is tested: the contract, the frameworks' arrays, and one small file per implementation."""
