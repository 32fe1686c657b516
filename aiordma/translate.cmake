# Cython, once for all builds of a tree: what it makes of a source depends on no Python and no compiler, and the wheels
# of five Pythons would have it made five times.
#
#   cmake -D PYTHON=... -D VERSION=... -D KEPT=... -D LIST=... -P translate.cmake
#
# brings KEPT up to date. LIST is a file with a line for each module: NAME;SOURCE;OPTION;... KEPT has the last result for
# each module, and a key of what it was made of.
#
#   cmake -D PYTHON=... -D VERSION=... -D KEPT=... -D LIST=... -D NAME=... -D OUT=... -P translate.cmake
#
# does that for one of them only, and writes OUT and OUT.dep from what is kept.
cmake_minimum_required(VERSION 3.20)
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)

file(GLOB_RECURSE shared "${root}/aiordma/*.pxd" "${root}/aiordma/*.pxi" "${root}/rocefabric/*.pxd")
set(of_all "${VERSION}\n")
foreach(file "${CMAKE_CURRENT_LIST_DIR}/translate" ${shared})
  file(SHA256 "${file}" hash)
  string(APPEND of_all "${file} ${hash}\n")
endforeach()

# The names are a process's own: another build of this tree may translate the same module now.
string(RANDOM LENGTH 12 own)
set(stale "")
set(orders "")
file(READ "${LIST}" text)
string(REGEX REPLACE "\n$" "" text "${text}")
string(REPLACE ";" "|" text "${text}") # a list of lists: cmake has one separator
string(REPLACE "\n" ";" lines "${text}")
foreach(line ${lines})
  string(REPLACE "|" ";" order "${line}")
  list(POP_FRONT order name source)
  if(NAME AND NOT name STREQUAL NAME)
    continue()
  endif()
  file(SHA256 "${source}" hash)
  set(key "${name} ${order}\n${source} ${hash}\n${of_all}")
  set(kept "${KEPT}/${name}")
  set(before "")
  if(EXISTS "${kept}.key")
    file(READ "${kept}.key" before)
  endif()
  if(NOT before STREQUAL key OR NOT EXISTS "${kept}.c" OR NOT EXISTS "${kept}.dep")
    file(REMOVE "${kept}.key")
    list(APPEND stale "${name}")
    set("key_${name}" "${key}")
    list(PREPEND order "${name}" "${source}" "${kept}.${own}.c")
    string(APPEND orders "${order}\n")
  endif()
endforeach()

if(stale)
  file(WRITE "${KEPT}/${own}.orders" "${orders}")
  # Cython goes through sets: with one seed it makes the same of a source each time.
  execute_process(COMMAND "${CMAKE_COMMAND}" -E env PYTHONHASHSEED=0
                          "${PYTHON}" "${CMAKE_CURRENT_LIST_DIR}/translate" "${KEPT}/${own}.orders"
                  WORKING_DIRECTORY "${root}" RESULT_VARIABLE failed)
  file(REMOVE "${KEPT}/${own}.orders")
  if(failed)
    file(GLOB left "${KEPT}/*.${own}.c" "${KEPT}/*.${own}.c.dep")
    file(REMOVE ${left})
    message(FATAL_ERROR "Cython cannot translate one of these; the reason is above: ${stale}")
  endif()
endif()
foreach(name ${stale})
  set(kept "${KEPT}/${name}")
  set(made "${kept}.${own}")
  file(READ "${made}.c.dep" made_of)
  string(REGEX REPLACE "^[^:]*:" "" made_of "${made_of}") # the paths are seen from the root
  string(REPLACE " " "\\ " from "${root}")
  string(REPLACE "\n  " "\n  ${from}/" made_of "${made_of}")
  file(WRITE "${made}.c.dep" "${made_of}")
  file(RENAME "${made}.c.dep" "${kept}.dep")
  file(RENAME "${made}.c" "${kept}.c")
  file(WRITE "${made}.key" "${key_${name}}")
  file(RENAME "${made}.key" "${kept}.key")
endforeach()

if(NAME)
  file(READ "${KEPT}/${NAME}.dep" made_of)
  file(WRITE "${OUT}.dep" "${OUT}:${made_of}")
  execute_process(COMMAND "${CMAKE_COMMAND}" -E copy "${KEPT}/${NAME}.c" "${OUT}" COMMAND_ERROR_IS_FATAL ANY)
endif()
