# Keeps one server running for as long as somebody holds its life line.
#
# arguments: directory, seconds between TERM and KILL, then the server's command line
# fd 0: read end of the life line      fd 1: the lock of the data directory, or the log      fd 2: the log
#
# words on the life line: "hello NAME" - answered by a file hello.NAME; "stop" - end, whoever else holds it
# files: pid (the server's), exit (its status, once it has ended); the directory is removed at the very end

dir=$1 grace=$2
shift 2
PATH=${PATH:+$PATH:}/usr/bin:/bin

exec 3<&0 4>&1 </dev/null >&2

# Only the server keeps the lock (4): it is free the moment that the server is gone, not earlier, not later.
"$@" 3<&- &
server=$!
exec 4>&-

# A service manager signals every process of a service at once. The server obeys; whoever has to clean up stays.
# Only from here on, for the server would inherit it, and miss a TERM that comes before it has its handlers.
trap '' HUP INT QUIT TERM

echo "$server" >"$dir/pid"

watch() {
    # `echo`, not `:`: a failing redirection of a special builtin would end this shell.
    while read -r word name <&3; do
        case $word in
            hello) echo >"$dir/hello.$name" ;;
            stop) break ;;
        esac
    done
    nap=
    trap '[ -z "$nap" ] || kill -KILL "$nap"; exit 0' USR1
    # The main shell ($$) waits for the server and dismisses us in the same instant, so while it lives the
    # process id cannot have been given to somebody else. If it was killed, the socket has to vouch for the server.
    kill -0 "$$" || [ -S "$dir/s" ] || exit 0
    kill -TERM "$server"
    sleep "$grace" </dev/null 3<&- &
    nap=$!
    wait "$nap"
    kill -0 "$$" && kill -KILL "$server"
    exit 0
}
watch &
watcher=$!

wait "$server"
echo $? >"$dir/exit"
kill -USR1 "$watcher" 2>/dev/null
# Dismissed while still reading: the server ended by itself. Its log stays until nobody needs it.
if ! wait "$watcher" 2>/dev/null; then
    while read -r word name <&3; do
        [ "$word" != stop ] || break
    done
fi
rm -rf "$dir"
