import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Arrays;

/** {@code serve HOST PORT} echoes one connection. {@code client LOCAL HOST PORT BYTES} checks its echo. */
public class Echo {
    public static void main(String[] words) throws Exception {
        if (words[0].equals("serve")) {
            serve(words[1], Integer.parseInt(words[2]));
        } else {
            client(words[1], words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]));
        }
    }

    static void serve(String host, int port) throws Exception {
        ServerSocket listener = new ServerSocket();
        listener.bind(new InetSocketAddress(host, port));
        System.out.println("ready");
        try (Socket connection = listener.accept()) {
            InputStream in = connection.getInputStream();
            OutputStream out = connection.getOutputStream();
            byte[] buffer = new byte[65536];
            for (int got = in.read(buffer); got >= 0; got = in.read(buffer)) {
                out.write(buffer, 0, got);
            }
            connection.shutdownOutput();
            System.out.println("end");
        }
    }

    static void client(String local, String host, int port, int size) throws Exception {
        byte[] data = new byte[size];
        new java.util.Random(1).nextBytes(data);
        try (Socket connection = new Socket(InetAddress.getByName(host), port, InetAddress.getByName(local), 0)) {
            Thread sending = new Thread(() -> {
                try {
                    connection.getOutputStream().write(data);
                    connection.shutdownOutput();
                } catch (Exception error) {
                    System.out.println(error);
                }
            });
            sending.start();
            byte[] got = connection.getInputStream().readAllBytes();
            sending.join();
            System.out.println(Arrays.equals(data, got) ? "closed" : "wrong bytes: " + got.length);
        }
    }
}
