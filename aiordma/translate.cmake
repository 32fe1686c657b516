# Cython, once for all builds of a tree: what it makes of a source depends on no Python and no compiler, and the wheels
# of five Pythons would have it made five times.
#
#   cmake -D PYTHON=... -D VERSION=... -D NAME=... -D SOURCE=... -D OUT=... -D KEPT=... -D OPTIONS=... -P translate.cmake
#
# Writes OUT and OUT.dep. KEPT has the last result for each module, and a key of what it was made of.
cmake_minimum_required(VERSION 3.20)
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
file(GLOB_RECURSE shared "${root}/aiordma/*.pxd" "${root}/aiordma/*.pxi" "${root}/rocefabric/*.pxd")
set(key "${VERSION}\n${NAME} ${SOURCE} ${OPTIONS}\n")
foreach(file "${SOURCE}" ${shared})
  file(SHA256 "${file}" hash)
  string(APPEND key "${file} ${hash}\n")
endforeach()

set(kept "${KEPT}/${NAME}")
set(before "")
if(EXISTS "${kept}.key")
  file(READ "${kept}.key" before)
endif()
if(NOT before STREQUAL key OR NOT EXISTS "${kept}.c" OR NOT EXISTS "${kept}.dep")
  file(MAKE_DIRECTORY "${KEPT}")
  file(REMOVE "${kept}.key")
  # The name is its own: another build of this tree may translate the same module now.
  string(RANDOM LENGTH 12 own)
  set(own "${kept}.${own}")
  execute_process(COMMAND "${PYTHON}" -m cython -3 --module-name "${NAME}" ${OPTIONS} --depfile
                          -I "${root}" "${SOURCE}" -o "${own}.c"
                  WORKING_DIRECTORY "${root}" RESULT_VARIABLE failed)
  if(failed)
    file(REMOVE "${own}.c" "${own}.c.dep")
    message(FATAL_ERROR "Cython cannot translate ${SOURCE}; the reason is above.")
  endif()
  file(READ "${own}.c.dep" made_of)
  string(REGEX REPLACE "^[^:]*:" "" made_of "${made_of}") # the paths are seen from the root
  string(REPLACE " " "\\ " from "${root}")
  string(REPLACE "\n  " "\n  ${from}/" made_of "${made_of}")
  file(WRITE "${own}.c.dep" "${made_of}")
  file(RENAME "${own}.c.dep" "${kept}.dep")
  file(RENAME "${own}.c" "${kept}.c")
  file(WRITE "${own}.key" "${key}")
  file(RENAME "${own}.key" "${kept}.key")
endif()

file(READ "${kept}.dep" made_of)
file(WRITE "${OUT}.dep" "${OUT}:${made_of}")
execute_process(COMMAND "${CMAKE_COMMAND}" -E copy "${kept}.c" "${OUT}" COMMAND_ERROR_IS_FATAL ANY)
