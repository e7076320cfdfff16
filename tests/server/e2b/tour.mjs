// Uses the E2B SDK for JavaScript as its users do, and checks what each method gives: `node tour.mjs`, with E2B's own variables set.
import assert from 'node:assert/strict'
import { CommandExitError, FileNotFoundError, NotFoundError, Sandbox, TimeoutError } from 'e2b'

async function until(look) {
  const deadline = Date.now() + 20_000
  for (;;) {
    const found = await look()
    if (found) return found
    assert(Date.now() < deadline, 'it did not happen')
  }
}

const stops = {
  async commands(sandbox) {
    const seen = []
    const result = await sandbox.commands.run('echo out; echo err >&2; echo $A; pwd', {
      envs: { A: 'b' }, cwd: '/tmp', onStdout: (text) => seen.push(text), onStderr: (text) => seen.push(text),
    })
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\nb\n/tmp\n', 'err\n', 0])
    assert.equal(seen.join('').length, 'out\nb\n/tmp\nerr\n'.length)
    assert.equal((await sandbox.commands.run('whoami', { user: 'root' })).stdout, 'root\n')
    await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
    await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 500 }), TimeoutError)
    const reader = await sandbox.commands.run('cat', { background: true, stdin: true })
    assert((await sandbox.commands.list()).some((process) => process.pid === reader.pid))
    await sandbox.commands.sendStdin(reader.pid, 'one\n')
    await sandbox.commands.closeStdin(reader.pid)
    await reader.wait()
    assert.deepEqual([reader.stdout, reader.stderr, reader.exitCode, reader.error], ['one\n', '', 0, undefined])
    const sleeper = await sandbox.commands.run('sleep 1000', { background: true })
    const again = await sandbox.commands.connect(sleeper.pid)
    await sleeper.disconnect()
    assert.equal(await again.kill(), true)
    await assert.rejects(again.wait(), CommandExitError)
    assert.equal(await sandbox.commands.kill(sleeper.pid), false)
  },

  async files(sandbox) {
    const info = await sandbox.files.write('dir/a.txt', 'text ü')
    assert.deepEqual([info.path, info.name], ['/home/user/dir/a.txt', 'a.txt'])
    assert.equal(await sandbox.files.read('dir/a.txt'), 'text ü')
    assert.equal((await sandbox.files.read('dir/a.txt', { format: 'bytes' })).length, 7)
    assert.equal(await (await sandbox.files.read('dir/a.txt', { format: 'blob' })).text(), 'text ü')
    let size = 0
    await sandbox.files.write('dir/big', new Blob(['x'.repeat(3_000_000)]))
    for await (const piece of await sandbox.files.read('dir/big', { format: 'stream' })) size += piece.length
    assert.equal(size, 3_000_000)
    const many = await sandbox.files.writeFiles([{ path: 'm/1', data: '1' }, { path: 'm/2', data: '2' }])
    assert.deepEqual(many.map((one) => one.path), ['/home/user/m/1', '/home/user/m/2'])
    assert.equal(await sandbox.files.makeDir('tree'), true)
    assert.equal(await sandbox.files.makeDir('tree'), false)
    assert.deepEqual((await sandbox.files.list('.')).map((entry) => entry.name), ['dir', 'm', 'tree'])
    assert.equal((await sandbox.files.rename('m', 'tree/m')).path, '/home/user/tree/m')
    assert.equal((await sandbox.files.getInfo('tree/m/1')).size, 1)
    await sandbox.files.remove('tree')
    assert.equal(await sandbox.files.exists('tree'), false)
    await assert.rejects(sandbox.files.read('nothing'), FileNotFoundError)
  },

  async watches(sandbox) {
    const events = []
    const handle = await sandbox.files.watchDir('.', (event) => { events.push(`${event.type} ${event.name}`) })
    await sandbox.commands.run('echo 1 > seen; rm seen')
    await until(async () => { await sandbox.isRunning(); return events.includes('remove seen') })
    assert.deepEqual(events, ['create seen', 'write seen', 'remove seen'])
    await handle.stop()
  },

  async links(sandbox) {
    const form = new FormData()
    form.append('file', new Blob(['by link']), 'linked')
    assert.equal((await fetch(await sandbox.uploadUrl('linked'), { method: 'POST', body: form })).status, 200)
    assert.equal(await (await fetch(await sandbox.downloadUrl('linked', { useSignatureExpiration: 60_000 }))).text(), 'by link')
  },

  async terminals(sandbox) {
    let shown = ''
    const decoder = new TextDecoder()
    const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => { shown += decoder.decode(data) } })
    await sandbox.pty.resize(terminal.pid, { cols: 101, rows: 30 })
    await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
    await terminal.wait()
    assert(shown.includes('30 101'), shown)
    const other = await sandbox.pty.create({ cols: 80, rows: 24, onData: () => {} })
    const again = await sandbox.pty.connect(other.pid, { onData: () => {} })
    await again.disconnect()
    assert.equal(await sandbox.pty.kill(other.pid), true)
  },

  async life(sandbox) {
    const info = await sandbox.getInfo()
    assert.deepEqual([info.sandboxId, info.state, info.metadata.tour], [sandbox.sandboxId, 'running', 'js'])
    await sandbox.setTimeout(900_000)
    const metrics = await until(() => sandbox.getMetrics().then((found) => found.length && found))
    assert(metrics[0].memTotal > metrics[0].memUsed)
    assert(sandbox.getHost(80).startsWith(`80-${sandbox.sandboxId}.`))
    const pages = Sandbox.list({ query: { metadata: { tour: 'js' } } })
    assert((await pages.nextItems()).some((one) => one.sandboxId === sandbox.sandboxId))
    assert.equal(pages.hasNext, false)
    await sandbox.files.write('kept', '1')
    const [child] = await sandbox.fork()
    assert.equal(await child.files.read('kept'), '1')
    assert.equal(await child.kill(), true)
    const snapshot = await sandbox.createSnapshot()
    assert((await sandbox.listSnapshots().nextItems()).some((one) => one.snapshotId === snapshot.snapshotId))
    assert.equal(await sandbox.pause(), true)
    assert.equal(await sandbox.isRunning(), false)
    const back = await Sandbox.connect(sandbox.sandboxId)
    assert.equal(await back.files.read('kept'), '1')
    await assert.rejects(Sandbox.connect('00000000-0000-0000-0000-000000000000'), NotFoundError)
  },
}

const sandbox = await Sandbox.create({ metadata: { tour: 'js' } })
try {
  for (const [name, stop] of Object.entries(stops)) {
    await stop(sandbox)
    console.log(name)
  }
} finally {
  assert.equal(await sandbox.kill(), true)
}
