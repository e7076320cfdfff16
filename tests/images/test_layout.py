"""Which directories the image `host` shows, for Pythons that lie wherever people put them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentenv.images.layout import HostLayout, PythonHome, host_layout, tree_name


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A merged system below the test's directory."""
    for name in ("usr/bin", "usr/lib", "home/me/.ssh", "home/me/.pyenv/versions/3.11/bin", "home/me/project/.venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "lib").symlink_to("usr/lib")
    return tmp_path


def layout_of(
    machine: Path, *prefixes: str, executable: str = "usr/bin/python3", package: str = "usr/lib/agentenv", given: str = ""
) -> HostLayout:
    python = PythonHome(
        tuple(machine / prefix for prefix in prefixes),
        machine / executable,
        machine / package,
        (machine / given,) if given else (),
    )
    return host_layout(python, homes=(machine / "home", machine / "home/me"), root=machine)


def shown(layout: HostLayout, machine: Path) -> set[str]:
    """The trees other than the system's, relative to the machine."""
    return {str(target.relative_to(machine)) for target in layout.trees if target.is_relative_to(machine)}


def test_the_system_of_a_merged_machine(machine: Path) -> None:
    layout = layout_of(machine)
    assert layout.trees[Path("/usr")] == machine / "usr"
    assert layout.links == {Path("/bin"): "usr/bin", Path("/lib"): "usr/lib"}


def test_the_system_of_an_unmerged_machine(machine: Path) -> None:
    (machine / "bin").unlink()
    (machine / "bin").mkdir()
    layout = layout_of(machine)
    assert layout.trees[Path("/bin")] == machine / "bin"
    assert Path("/bin") not in layout.links


def test_a_prefix_under_a_home_directory_comes_without_its_neighbours(machine: Path) -> None:
    layout = layout_of(machine, "home/me/project/.venv", "home/me/.pyenv/versions/3.11")
    assert shown(layout, machine) >= {"home/me/project/.venv", "home/me/.pyenv/versions/3.11"}
    assert not any(layout.covers(machine / private) for private in ("home/me/.ssh", "home/me/project", "home/me"))


def test_a_prefix_inside_of_another_needs_no_tree(machine: Path) -> None:
    (machine / "home/me/py/envs/one").mkdir(parents=True)
    layout = layout_of(machine, "home/me/py", "home/me/py/envs/one")
    assert "home/me/py/envs/one" not in shown(layout, machine)
    assert layout.covers(machine / "home/me/py/envs/one")


def test_a_prefix_that_is_a_home_directory_shows_its_programs_only(machine: Path) -> None:
    for name in ("bin", "lib", "include"):
        (machine / "home/me" / name).mkdir()
    (machine / "home/me/pyvenv.cfg").write_text("home = /usr/bin\n")
    layout = layout_of(machine, "home/me")
    assert shown(layout, machine) >= {"home/me/bin", "home/me/lib", "home/me/include"}
    assert not layout.covers(machine / "home/me/.ssh")
    assert layout.files == [machine / "home/me/pyvenv.cfg"]


def test_links_on_the_way_to_a_prefix_are_shown(machine: Path) -> None:
    (machine / "home/me/.pyenv/versions/current").symlink_to("3.11")
    layout = layout_of(machine, "home/me/.pyenv/versions/current")
    assert machine / "home/me/.pyenv/versions/3.11" in layout.trees
    assert layout.links[machine / "home/me/.pyenv/versions/current"] == "3.11"


def test_a_circle_of_links_ends(machine: Path) -> None:
    (machine / "a").symlink_to("b")
    (machine / "b").symlink_to("a")
    layout = layout_of(machine, executable="a/python")
    assert machine / "a" in layout.links


def test_a_package_outside_of_the_prefixes_is_copied_alone(machine: Path) -> None:
    (machine / "home/me/clone/src/agentenv").mkdir(parents=True)
    layout = layout_of(machine, package="home/me/clone/src/agentenv")
    assert layout.package == machine / "home/me/clone/src/agentenv"
    assert not layout.covers(machine / "home/me/clone")
    assert layout.import_path == ()


def test_a_clone_on_the_import_path_stays_on_it(machine: Path) -> None:
    (machine / "home/me/clone/src/agentenv").mkdir(parents=True)
    layout = layout_of(machine, package="home/me/clone/src/agentenv", given="home/me/clone/src")
    assert layout.import_path == (str(machine / "home/me/clone/src"),)


def test_a_package_in_the_users_site_comes_with_its_dependencies(machine: Path) -> None:
    site = "home/me/.local/lib/python3.11/site-packages"
    (machine / site / "agentenv").mkdir(parents=True)
    layout = layout_of(machine, package=f"{site}/agentenv")
    assert site in shown(layout, machine)
    assert layout.import_path == (str(machine / site),)


def test_the_running_python_comes_first_on_the_path(machine: Path) -> None:
    layout = layout_of(machine, "home/me/project/.venv", executable="home/me/project/.venv/bin/python")
    assert layout.path[0] == str(machine / "home/me/project/.venv/bin")
    assert layout.path[-1] == "/bin"
    assert len(set(layout.path)) == len(layout.path)


def test_the_outer_tree_is_mounted_before_the_inner(machine: Path) -> None:
    layout = HostLayout(trees={Path("/opt/py/inner"): machine, Path("/opt/py"): machine, Path("/usr"): machine})
    targets = [tree.target for tree in layout.overlays(machine)]
    assert targets == ["/", "/opt/py", "/opt/py/inner", "/usr"]


def test_tree_names_are_single_components_and_differ() -> None:
    targets = ["/", "/usr", "/home/me/.venv", "/home/me%2F.venv", "/home:a,b"]
    names = [tree_name(target) for target in targets]
    assert len(set(names)) == len(targets)
    assert not any(character in name for name in names for character in "/:,")


def test_the_running_python_is_found_by_its_own_account() -> None:
    python = PythonHome.running()
    assert python.executable.exists()
    assert (python.package / "images" / "layout.py").is_file()
