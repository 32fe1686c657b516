import aiordma


def test_package_imports() -> None:
    assert aiordma.__doc__
